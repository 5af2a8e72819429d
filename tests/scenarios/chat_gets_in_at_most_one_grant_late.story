# Under constant chat the indexer still makes progress: one chunk at a time, the first after
# background_max_starvation, then at most half of the time (background_share).
card 16GB headroom=512MB
model gemma4-12b 8488MB slots=2 load=3s capabilities=chat,vision
model qwen3-14b 9732MB slots=2 load=4s
model nomic-embed 400MB slots=4 load=500ms pinned capabilities=embedding

@ submit warm-up interactive gemma4-12b work=200ms
@ wait 10s
@ submit chat interactive gemma4-12b work=12s
@ submit index background nomic-embed items=96
@ wait 20s

must   dispatch .* chat >> dispatch .* index .*\(share\) >> dispatch .* index .*\(share\) >> dispatch .* index .*\(share\) >> complete .* index >> complete .* chat
never  dispatch .* index (?!.*\(share\))
log
   0.000 load      nomic-embed    reserve 400 MB, pinned
   0.000 @ submit warm-up interactive gemma4-12b work=200ms
   0.000 enqueue   warm-up        interactive chat gemma4-12b steps=1
   0.000 mode      card           card interactive
   0.000 load      gemma4-12b     reserve 8488 MB, wanted by interactive
   0.000 @ wait 10s
   0.170 unloaded  nomic-embed    an interactive request needs the room or the load slot for gemma4-12b
   3.000 loaded    gemma4-12b     3s pid=1001
   3.000 dispatch  warm-up        interactive step 1/1 -> gemma4-12b
   3.000 load      nomic-embed    reserve 400 MB, pinned
   3.200 complete  warm-up        interactive gemma4-12b
   3.500 loaded    nomic-embed    500ms pid=1002
   5.200 mode      card           card idle
  10.000 @ submit chat interactive gemma4-12b work=12s
  10.000 enqueue   chat           interactive chat gemma4-12b steps=1
  10.000 mode      card           card interactive
  10.000 dispatch  chat           interactive step 1/1 -> gemma4-12b
  10.000 @ submit index background nomic-embed items=96
  10.000 enqueue   index          background embedding nomic-embed steps=3
  10.000 defer     index          background nomic-embed: interactive work is active; next step in 3s
  10.000 @ wait 20s
  13.000 dispatch  index          background step 1/3 -> nomic-embed (share)
  13.000 defer     index          background nomic-embed: held by background_share; next step in after the one that runs
  13.192 dispatch  index          background step 2/3 -> nomic-embed (share)
  13.192 defer     index          background nomic-embed: held by background_share; next step in after the one that runs
  13.384 dispatch  index          background step 3/3 -> nomic-embed (share)
  13.480 complete  index          background nomic-embed
  22.000 complete  chat           interactive gemma4-12b
  24.000 mode      card           card idle

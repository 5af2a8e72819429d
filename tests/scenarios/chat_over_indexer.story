# A user chats while 1,000 documents are indexed. The indexer's embeddings are cut into chunks;
# the chat waits for none of them, and the rest of the index is done once the chat is quiet.
card 16GB headroom=512MB
model gemma4-12b 8488MB slots=2 load=3s capabilities=chat,vision
model qwen3-14b 9732MB slots=2 load=4s
model nomic-embed 400MB slots=4 load=500ms pinned capabilities=embedding
policy background_max_starvation=0s

@ submit warm-up interactive gemma4-12b work=200ms
@ wait 10s
@ submit index background nomic-embed items=1000
@ wait 150ms
@ submit chat interactive gemma4-12b work=1200ms
@ wait 20s

must   dispatch .* index .*step 1/ >> enqueue .* chat >> mode .* interactive >> dispatch .* chat .*-> gemma4-12b >> complete .* chat >> mode .* idle >> complete .* index
must   complete .* index .*
never  evict
never  refuse
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
  10.000 @ submit index background nomic-embed items=1000
  10.000 enqueue   index          background embedding nomic-embed steps=32
  10.000 dispatch  index          background step 1/32 -> nomic-embed
  10.000 mode      card           card background
  10.000 @ wait 150ms
  10.096 dispatch  index          background step 2/32 -> nomic-embed
  10.150 @ submit chat interactive gemma4-12b work=1200ms
  10.150 enqueue   chat           interactive chat gemma4-12b steps=1
  10.150 mode      card           card interactive
  10.150 defer     index          background nomic-embed: interactive work is active; next step in when it is idle
  10.150 dispatch  chat           interactive step 1/1 -> gemma4-12b
  10.150 @ wait 20s
  11.350 complete  chat           interactive gemma4-12b
  13.350 mode      card           card idle
  13.350 dispatch  index          background step 3/32 -> nomic-embed
  13.350 mode      card           card background
  13.446 dispatch  index          background step 4/32 -> nomic-embed
  13.542 dispatch  index          background step 5/32 -> nomic-embed
  13.638 dispatch  index          background step 6/32 -> nomic-embed
  13.734 dispatch  index          background step 7/32 -> nomic-embed
  13.830 dispatch  index          background step 8/32 -> nomic-embed
  13.926 dispatch  index          background step 9/32 -> nomic-embed
  14.022 dispatch  index          background step 10/32 -> nomic-embed
  14.118 dispatch  index          background step 11/32 -> nomic-embed
  14.214 dispatch  index          background step 12/32 -> nomic-embed
  14.310 dispatch  index          background step 13/32 -> nomic-embed
  14.406 dispatch  index          background step 14/32 -> nomic-embed
  14.502 dispatch  index          background step 15/32 -> nomic-embed
  14.598 dispatch  index          background step 16/32 -> nomic-embed
  14.694 dispatch  index          background step 17/32 -> nomic-embed
  14.790 dispatch  index          background step 18/32 -> nomic-embed
  14.886 dispatch  index          background step 19/32 -> nomic-embed
  14.982 dispatch  index          background step 20/32 -> nomic-embed
  15.078 dispatch  index          background step 21/32 -> nomic-embed
  15.174 dispatch  index          background step 22/32 -> nomic-embed
  15.270 dispatch  index          background step 23/32 -> nomic-embed
  15.366 dispatch  index          background step 24/32 -> nomic-embed
  15.462 dispatch  index          background step 25/32 -> nomic-embed
  15.558 dispatch  index          background step 26/32 -> nomic-embed
  15.654 dispatch  index          background step 27/32 -> nomic-embed
  15.750 dispatch  index          background step 28/32 -> nomic-embed
  15.846 dispatch  index          background step 29/32 -> nomic-embed
  15.942 dispatch  index          background step 30/32 -> nomic-embed
  16.038 dispatch  index          background step 31/32 -> nomic-embed
  16.134 dispatch  index          background step 32/32 -> nomic-embed
  16.158 complete  index          background nomic-embed
  16.158 mode      card           card idle

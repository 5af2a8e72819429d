# qwen3-14b is hot: a person has just used it. A background request for the other model may not
# take its place; it waits, says why, and is answered 503 after its max_wait of three seconds.
card 16GB headroom=512MB
model gemma4-12b 8488MB slots=2 load=3s capabilities=chat,vision
model qwen3-14b 9732MB slots=2 load=4s
model nomic-embed 400MB slots=4 load=500ms pinned capabilities=embedding

@ submit chat interactive qwen3-14b
@ wait 10s
@ submit ambient background gemma4-12b max_wait=3s
@ wait 5s

must   enqueue .* ambient >> defer .* ambient .*kept: .*qwen3-14b \(hot\) >> timeout .* ambient .*longer than max_wait 3s
never  evict
never  load .* gemma4-12b
log
   0.000 load      nomic-embed    reserve 400 MB, pinned
   0.000 @ submit chat interactive qwen3-14b
   0.000 enqueue   chat           interactive chat qwen3-14b steps=1
   0.000 mode      card           card interactive
   0.000 load      qwen3-14b      reserve 9732 MB, wanted by interactive
   0.000 @ wait 10s
   0.170 unloaded  nomic-embed    an interactive request needs the room or the load slot for qwen3-14b
   4.000 loaded    qwen3-14b      4s pid=1001
   4.000 dispatch  chat           interactive step 1/1 -> qwen3-14b
   4.000 load      nomic-embed    reserve 400 MB, pinned
   4.500 loaded    nomic-embed    500ms pid=1002
   5.000 complete  chat           interactive qwen3-14b
   7.000 mode      card           card idle
  10.000 @ submit ambient background gemma4-12b max_wait=3s
  10.000 enqueue   ambient        background chat gemma4-12b steps=1
  10.000 defer     ambient        background gemma4-12b: gemma4-12b needs 8488 MB, 5740 MB can be had; kept: qwen3-14b (hot), nomic-embed (pinned)
  10.000 @ wait 5s
  13.000 timeout   ambient        background chat gemma4-12b: waited 3s, longer than max_wait 3s: gemma4-12b needs 8488 MB, 5740 MB can be had; kept: qwen3-14b (hot), nomic-embed (pinned)

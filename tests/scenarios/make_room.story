# qwen3-14b does not fit beside gemma4-12b. A person asks for it: the idle model leaves, although
# it is hot, and the log says what that cost.
card 16GB headroom=512MB
model gemma4-12b 8488MB slots=2 load=3s capabilities=chat,vision
model qwen3-14b 9732MB slots=2 load=4s
model nomic-embed 400MB slots=4 load=500ms pinned capabilities=embedding

@ submit first interactive gemma4-12b
@ wait 10s
@ submit second interactive qwen3-14b
@ wait 10s

must   complete .* first >> evict .* gemma4-12b .*make room for qwen3-14b, cost .*running=0 >> unloaded .* gemma4-12b >> load .* qwen3-14b .*9732 MB >> loaded .* qwen3-14b >> dispatch .* second
never  evict .* nomic-embed
never  refuse
log
   0.000 load      nomic-embed    reserve 400 MB, pinned
   0.000 @ submit first interactive gemma4-12b
   0.000 enqueue   first          interactive chat gemma4-12b steps=1
   0.000 mode      card           card interactive
   0.000 load      gemma4-12b     reserve 8488 MB, wanted by interactive
   0.000 @ wait 10s
   0.170 unloaded  nomic-embed    an interactive request needs the room or the load slot for gemma4-12b
   3.000 loaded    gemma4-12b     3s pid=1001
   3.000 dispatch  first          interactive step 1/1 -> gemma4-12b
   3.000 load      nomic-embed    reserve 400 MB, pinned
   3.500 loaded    nomic-embed    500ms pid=1002
   4.000 complete  first          interactive gemma4-12b
   6.000 mode      card           card idle
  10.000 @ submit second interactive qwen3-14b
  10.000 enqueue   second         interactive chat qwen3-14b steps=1
  10.000 mode      card           card interactive
  10.000 evict     gemma4-12b     make room for qwen3-14b, cost 3.1 (running=0)
  10.000 defer     second         interactive qwen3-14b: making room for qwen3-14b: gemma4-12b must go first
  10.000 defer     second         interactive qwen3-14b: waiting until the card shows the memory of gemma4-12b as free
  10.000 @ wait 10s
  10.170 unloaded  gemma4-12b     make room for qwen3-14b, cost 3.1
  10.170 load      qwen3-14b      reserve 9732 MB, wanted by interactive
  14.170 loaded    qwen3-14b      4s pid=1003
  14.170 dispatch  second         interactive step 1/1 -> qwen3-14b
  15.170 complete  second         interactive qwen3-14b
  17.170 mode      card           card idle

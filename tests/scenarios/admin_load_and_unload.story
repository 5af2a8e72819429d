# An admin loads a model before it is needed, which may evict an idle one, and unloads it again
# while it works: what runs is finished first.
card 16GB
model a 9000MB load=2s
model b 9000MB load=2s

@ submit first interactive a
@ wait 5s
@ admin load b
@ wait 5s
@ submit second interactive b work=3s
@ wait 1s
@ admin unload b
@ wait 5s

must   evict .* a .*make room for b >> loaded .* b >> dispatch .* second >> drain .* b .*asked by admin.*running=1 >> complete .* second >> unload .* b .*asked by admin >> unloaded .* b
never  cancel
log
   0.000 @ submit first interactive a
   0.000 enqueue   first          interactive chat a steps=1
   0.000 mode      card           card interactive
   0.000 load      a              reserve 9000 MB, wanted by interactive
   0.000 @ wait 5s
   2.000 loaded    a              2s pid=1001
   2.000 dispatch  first          interactive step 1/1 -> a
   3.000 complete  first          interactive a
   5.000 mode      card           card idle
   5.000 @ admin load b
   5.000 evict     a              make room for b, cost 2.2 (running=0)
   5.000 @ wait 5s
   5.170 unloaded  a              make room for b, cost 2.2
   5.170 load      b              reserve 9000 MB, wanted by interactive
   7.170 loaded    b              2s pid=1002
  10.000 @ submit second interactive b work=3s
  10.000 enqueue   second         interactive chat b steps=1
  10.000 mode      card           card interactive
  10.000 dispatch  second         interactive step 1/1 -> b
  10.000 @ wait 1s
  11.000 @ admin unload b
  11.000 drain     b              asked by admin (running=1)
  11.000 @ wait 5s
  13.000 complete  second         interactive b
  13.000 unload    b              asked by admin
  13.170 unloaded  b              asked by admin
  15.000 mode      card           card idle

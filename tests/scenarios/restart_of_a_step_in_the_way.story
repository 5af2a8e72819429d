# A background step that nobody has seen a byte of stands in a person's way: its model must leave.
# It is taken back, the model leaves at once, and the step is done again afterwards.
card 16GB
model a 9000MB load=2s
model b 9000MB load=2s

@ submit slow background a work=20s
@ wait 5s
@ submit chat interactive b
@ wait 10s
@ wait 310s
@ wait 30s

must   dispatch .* slow >> drain .* a .*make room for b >> requeue .* slow .*taken back >> evict .* a >> dispatch .* chat >> complete .* chat >> evict .* b .*make room for a >> dispatch .* slow >> complete .* slow
never  fail
log
   0.000 @ submit slow background a work=20s
   0.000 enqueue   slow           background chat a steps=1
   0.000 load      a              reserve 9000 MB, wanted by background
   0.000 @ wait 5s
   2.000 loaded    a              2s pid=1001
   2.000 dispatch  slow           background step 1/1 -> a
   2.000 mode      card           card background
   5.000 @ submit chat interactive b
   5.000 enqueue   chat           interactive chat b steps=1
   5.000 mode      card           card interactive
   5.000 drain     a              make room for b, cost 0.8 (running=1)
   5.000 defer     chat           interactive b: making room for b: a must go first
   5.000 @ wait 10s
   5.020 requeue   slow           background a: taken back
   5.020 defer     slow           background a: an interactive request is waiting for b
   5.121 evict     a              make room for b, cost 0.8 (running=0)
   5.121 defer     chat           interactive b: waiting until the card shows the memory of a as free
   5.291 unloaded  a              make room for b, cost 0.8
   5.291 load      b              reserve 9000 MB, wanted by interactive
   7.291 loaded    b              2s pid=1002
   7.291 dispatch  chat           interactive step 1/1 -> b
   7.291 defer     slow           background a: interactive work is active; next step in 729ms
   8.020 defer     slow           background a: a needs 9000 MB, 7384 MB can be had; kept: b (hot)
   8.291 complete  chat           interactive b
  10.291 mode      card           card idle
  15.000 @ wait 310s
 308.291 evict     b              make room for a, cost 1.2 (running=0)
 308.291 defer     slow           background a: making room for a: b must go first
 308.291 defer     slow           background a: waiting until the card shows the memory of b as free
 308.461 unloaded  b              make room for a, cost 1.2
 308.461 load      a              reserve 9000 MB, wanted by background
 310.461 loaded    a              2s pid=1003
 310.461 dispatch  slow           background step 1/1 -> a
 310.461 mode      card           card background
 325.000 @ wait 30s
 330.461 complete  slow           background a
 330.461 mode      card           card idle

# Two chats use two models that do not fit together. The resident one may serve those who are
# queued for it, but not past ten seconds after the first request for the other (interactive_turn).
card 16GB
model a 9000MB load=2s
model b 9000MB load=2s

@ submit a interactive a work=2s times=12 client=a
@ wait 4s
@ submit b interactive b work=1s
@ wait 40s

must   enqueue .* b .* >> defer .* b .*until its turn ends >> drain .* a .*make room for b >> evict .* a .*make room for b >> dispatch .* b .*-> b >> complete .* b >> load .* a .*
never  refuse
log
   0.000 @ submit a interactive a work=2s times=12 client=a
   0.000 enqueue   a1             interactive chat a steps=1
   0.000 mode      card           card interactive
   0.000 load      a              reserve 9000 MB, wanted by interactive
   0.000 enqueue   a2             interactive chat a steps=1
   0.000 enqueue   a3             interactive chat a steps=1
   0.000 enqueue   a4             interactive chat a steps=1
   0.000 enqueue   a5             interactive chat a steps=1
   0.000 enqueue   a6             interactive chat a steps=1
   0.000 enqueue   a7             interactive chat a steps=1
   0.000 enqueue   a8             interactive chat a steps=1
   0.000 enqueue   a9             interactive chat a steps=1
   0.000 enqueue   a10            interactive chat a steps=1
   0.000 enqueue   a11            interactive chat a steps=1
   0.000 enqueue   a12            interactive chat a steps=1
   0.000 @ wait 4s
   2.000 loaded    a              2s pid=1001
   2.000 dispatch  a1             interactive step 1/1 -> a
   4.000 complete  a1             interactive a
   4.000 dispatch  a2             interactive step 1/1 -> a
   4.000 @ submit b interactive b work=1s
   4.000 enqueue   b              interactive chat b steps=1
   4.000 defer     b              interactive b: b needs 9000 MB; a (in interactive use) serves interactive work until its turn ends
   4.000 @ wait 40s
   6.000 complete  a2             interactive a
   6.000 dispatch  a3             interactive step 1/1 -> a
   8.000 complete  a3             interactive a
   8.000 dispatch  a4             interactive step 1/1 -> a
  10.000 complete  a4             interactive a
  10.000 dispatch  a5             interactive step 1/1 -> a
  12.000 complete  a5             interactive a
  12.000 dispatch  a6             interactive step 1/1 -> a
  14.000 complete  a6             interactive a
  14.000 dispatch  a7             interactive step 1/1 -> a
  14.000 drain     a              make room for b, cost 23.4 (running=1)
  14.000 defer     b              interactive b: making room for b: a must go first
  16.000 complete  a7             interactive a
  16.000 defer     a8             interactive a: b is loading; one load at a time
  16.000 evict     a              make room for b, cost 23.3 (running=0)
  16.000 defer     b              interactive b: waiting until the card shows the memory of a as free
  16.170 unloaded  a              make room for b, cost 23.3
  16.170 load      b              reserve 9000 MB, wanted by interactive
  18.170 loaded    b              2s pid=1002
  18.170 dispatch  b              interactive step 1/1 -> b
  18.170 defer     a8             interactive a: a needs 9000 MB, 7384 MB can be had; kept: b (not served yet)
  19.170 complete  b              interactive b
  19.170 evict     b              make room for a, cost 2.1 (running=0)
  19.170 defer     a8             interactive a: making room for a: b must go first
  19.170 defer     a8             interactive a: waiting until the card shows the memory of b as free
  19.340 unloaded  b              make room for a, cost 2.1
  19.340 load      a              reserve 9000 MB, wanted by interactive
  21.340 loaded    a              2s pid=1003
  21.340 dispatch  a8             interactive step 1/1 -> a
  23.340 complete  a8             interactive a
  23.340 dispatch  a9             interactive step 1/1 -> a
  25.340 complete  a9             interactive a
  25.340 dispatch  a10            interactive step 1/1 -> a
  27.340 complete  a10            interactive a
  27.340 dispatch  a11            interactive step 1/1 -> a
  29.340 complete  a11            interactive a
  29.340 dispatch  a12            interactive step 1/1 -> a
  31.340 complete  a12            interactive a
  33.340 mode      card           card idle

# Two models that do not fit together are asked for in turn by impatient clients: reported once,
# with the names, the missing memory and the settings that would help.
card 16GB
model a 9000MB load=1s
model b 9000MB load=1s
policy min_residency=0s

@ submit a background a times=1
@ submit b background b times=1
@ wait 5s
@ submit a2 background a
@ wait 5s
@ submit b2 background b
@ wait 5s
@ submit a3 background a
@ wait 5s
@ submit b3 background b
@ wait 5s
@ submit a4 background a
@ wait 5s
@ submit b4 background b
@ wait 5s
@ submit a5 background a
@ wait 5s
@ submit b5 background b
@ wait 5s
@ submit a6 background a
@ wait 5s

must   thrash .* a .*a and b push each other out, 1616 MB are missing
log
   0.000 @ submit a background a times=1
   0.000 enqueue   a1             background chat a steps=1
   0.000 load      a              reserve 9000 MB, wanted by background
   0.000 @ submit b background b times=1
   0.000 enqueue   b1             background chat b steps=1
   0.000 defer     b1             background b: a is loading; one load at a time
   0.000 @ wait 5s
   1.000 loaded    a              1s pid=1001
   1.000 dispatch  a1             background step 1/1 -> a
   1.000 defer     b1             background b: b needs 9000 MB, 7384 MB can be had; kept: a (not served yet)
   1.000 mode      card           card background
   2.000 complete  a1             background a
   2.000 evict     a              make room for b, cost 0.5 (running=0)
   2.000 defer     b1             background b: making room for b: a must go first
   2.000 mode      card           card idle
   2.000 defer     b1             background b: waiting until the card shows the memory of a as free
   2.170 unloaded  a              make room for b, cost 0.5
   2.170 load      b              reserve 9000 MB, wanted by background
   3.170 loaded    b              1s pid=1002
   3.170 dispatch  b1             background step 1/1 -> b
   3.170 mode      card           card background
   4.170 complete  b1             background b
   4.170 mode      card           card idle
   5.000 @ submit a2 background a
   5.000 enqueue   a2             background chat a steps=1
   5.000 evict     b              make room for a, cost 0.5 (running=0)
   5.000 defer     a2             background a: making room for a: b must go first
   5.000 defer     a2             background a: waiting until the card shows the memory of b as free
   5.000 @ wait 5s
   5.170 unloaded  b              make room for a, cost 0.5
   5.170 load      a              reserve 9000 MB, wanted by background
   6.170 loaded    a              1s pid=1003
   6.170 dispatch  a2             background step 1/1 -> a
   6.170 mode      card           card background
   7.170 complete  a2             background a
   7.170 mode      card           card idle
  10.000 @ submit b2 background b
  10.000 enqueue   b2             background chat b steps=1
  10.000 evict     a              make room for b, cost 0.8 (running=0)
  10.000 defer     b2             background b: making room for b: a must go first
  10.000 defer     b2             background b: waiting until the card shows the memory of a as free
  10.000 @ wait 5s
  10.170 unloaded  a              make room for b, cost 0.8
  10.170 load      b              reserve 9000 MB, wanted by background
  11.170 loaded    b              1s pid=1004
  11.170 dispatch  b2             background step 1/1 -> b
  11.170 mode      card           card background
  12.170 complete  b2             background b
  12.170 mode      card           card idle
  15.000 @ submit a3 background a
  15.000 enqueue   a3             background chat a steps=1
  15.000 evict     b              make room for a, cost 0.8 (running=0)
  15.000 defer     a3             background a: making room for a: b must go first
  15.000 defer     a3             background a: waiting until the card shows the memory of b as free
  15.000 @ wait 5s
  15.170 unloaded  b              make room for a, cost 0.8
  15.170 load      a              reserve 9000 MB, wanted by background
  16.170 loaded    a              1s pid=1005
  16.170 dispatch  a3             background step 1/1 -> a
  16.170 mode      card           card background
  17.170 complete  a3             background a
  17.170 mode      card           card idle
  20.000 @ submit b3 background b
  20.000 enqueue   b3             background chat b steps=1
  20.000 evict     a              make room for b, cost 1.1 (running=0)
  20.000 defer     b3             background b: making room for b: a must go first
  20.000 defer     b3             background b: waiting until the card shows the memory of a as free
  20.000 @ wait 5s
  20.170 unloaded  a              make room for b, cost 1.1
  20.170 load      b              reserve 9000 MB, wanted by background
  21.170 loaded    b              1s pid=1006
  21.170 dispatch  b3             background step 1/1 -> b
  21.170 mode      card           card background
  22.170 complete  b3             background b
  22.170 mode      card           card idle
  25.000 @ submit a4 background a
  25.000 enqueue   a4             background chat a steps=1
  25.000 evict     b              make room for a, cost 1.1 (running=0)
  25.000 defer     a4             background a: making room for a: b must go first
  25.000 defer     a4             background a: waiting until the card shows the memory of b as free
  25.000 @ wait 5s
  25.170 unloaded  b              make room for a, cost 1.1
  25.170 load      a              reserve 9000 MB, wanted by background
  26.170 loaded    a              1s pid=1007
  26.170 dispatch  a4             background step 1/1 -> a
  26.170 mode      card           card background
  27.170 complete  a4             background a
  27.170 mode      card           card idle
  30.000 @ submit b4 background b
  30.000 enqueue   b4             background chat b steps=1
  30.000 evict     a              make room for b, cost 1.3 (running=0)
  30.000 defer     b4             background b: making room for b: a must go first
  30.000 defer     b4             background b: waiting until the card shows the memory of a as free
  30.000 @ wait 5s
  30.170 unloaded  a              make room for b, cost 1.3
  30.170 load      b              reserve 9000 MB, wanted by background
  31.170 loaded    b              1s pid=1008
  31.170 dispatch  b4             background step 1/1 -> b
  31.170 mode      card           card background
  32.170 complete  b4             background b
  32.170 mode      card           card idle
  35.000 @ submit a5 background a
  35.000 enqueue   a5             background chat a steps=1
  35.000 evict     b              make room for a, cost 1.3 (running=0)
  35.000 defer     a5             background a: making room for a: b must go first
  35.000 defer     a5             background a: waiting until the card shows the memory of b as free
  35.000 @ wait 5s
  35.170 unloaded  b              make room for a, cost 1.3
  35.170 load      a              reserve 9000 MB, wanted by background
  36.170 loaded    a              1s pid=1009
  36.170 dispatch  a5             background step 1/1 -> a
  36.170 mode      card           card background
  37.170 complete  a5             background a
  37.170 mode      card           card idle
  40.000 @ submit b5 background b
  40.000 enqueue   b5             background chat b steps=1
  40.000 evict     a              make room for b, cost 1.6 (running=0)
  40.000 defer     b5             background b: making room for b: a must go first
  40.000 defer     b5             background b: waiting until the card shows the memory of a as free
  40.000 @ wait 5s
  40.170 unloaded  a              make room for b, cost 1.6
  40.170 load      b              reserve 9000 MB, wanted by background
  41.170 loaded    b              1s pid=1010
  41.170 dispatch  b5             background step 1/1 -> b
  41.170 mode      card           card background
  42.170 complete  b5             background b
  42.170 mode      card           card idle
  45.000 @ submit a6 background a
  45.000 enqueue   a6             background chat a steps=1
  45.000 evict     b              make room for a, cost 1.6 (running=0)
  45.000 defer     a6             background a: making room for a: b must go first
  45.000 defer     a6             background a: waiting until the card shows the memory of b as free
  45.000 @ wait 5s
  45.170 unloaded  b              make room for a, cost 1.6
  45.170 load      a              reserve 9000 MB, wanted by background
  45.170 thrash    a              loaded 6 times in 5m00s: a and b push each other out, 1616 MB are missing for both; lower ctx or parallel, raise policy.min_residency or gpu.vram_limit_mb
  46.170 loaded    a              1s pid=1011
  46.170 dispatch  a6             background step 1/1 -> a
  46.170 mode      card           card background
  47.170 complete  a6             background a
  47.170 mode      card           card idle

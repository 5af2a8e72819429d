# Two background models that do not fit together: each stays for min_residency instead of being
# thrown out by the next request for the other.
card 16GB
model a 9000MB load=2s
model b 9000MB load=2s
policy min_residency=30s

@ submit a background a times=40
@ submit b background b times=5
@ wait 120s

must   loaded .* a .* >> defer .*kept: a \(not served yet\) >> drain .* a .*make room for b >> evict .* a >> loaded .* b .* >> evict .* b .*make room for a
never  thrash
log
   0.000 @ submit a background a times=40
   0.000 enqueue   a1             background chat a steps=1
   0.000 load      a              reserve 9000 MB, wanted by background
   0.000 enqueue   a2             background chat a steps=1
   0.000 enqueue   a3             background chat a steps=1
   0.000 enqueue   a4             background chat a steps=1
   0.000 enqueue   a5             background chat a steps=1
   0.000 enqueue   a6             background chat a steps=1
   0.000 enqueue   a7             background chat a steps=1
   0.000 enqueue   a8             background chat a steps=1
   0.000 enqueue   a9             background chat a steps=1
   0.000 enqueue   a10            background chat a steps=1
   0.000 enqueue   a11            background chat a steps=1
   0.000 enqueue   a12            background chat a steps=1
   0.000 enqueue   a13            background chat a steps=1
   0.000 enqueue   a14            background chat a steps=1
   0.000 enqueue   a15            background chat a steps=1
   0.000 enqueue   a16            background chat a steps=1
   0.000 enqueue   a17            background chat a steps=1
   0.000 enqueue   a18            background chat a steps=1
   0.000 enqueue   a19            background chat a steps=1
   0.000 enqueue   a20            background chat a steps=1
   0.000 enqueue   a21            background chat a steps=1
   0.000 enqueue   a22            background chat a steps=1
   0.000 enqueue   a23            background chat a steps=1
   0.000 enqueue   a24            background chat a steps=1
   0.000 enqueue   a25            background chat a steps=1
   0.000 enqueue   a26            background chat a steps=1
   0.000 enqueue   a27            background chat a steps=1
   0.000 enqueue   a28            background chat a steps=1
   0.000 enqueue   a29            background chat a steps=1
   0.000 enqueue   a30            background chat a steps=1
   0.000 enqueue   a31            background chat a steps=1
   0.000 enqueue   a32            background chat a steps=1
   0.000 enqueue   a33            background chat a steps=1
   0.000 enqueue   a34            background chat a steps=1
   0.000 enqueue   a35            background chat a steps=1
   0.000 enqueue   a36            background chat a steps=1
   0.000 enqueue   a37            background chat a steps=1
   0.000 enqueue   a38            background chat a steps=1
   0.000 enqueue   a39            background chat a steps=1
   0.000 enqueue   a40            background chat a steps=1
   0.000 @ submit b background b times=5
   0.000 enqueue   b1             background chat b steps=1
   0.000 defer     b1             background b: a is loading; one load at a time
   0.000 enqueue   b2             background chat b steps=1
   0.000 enqueue   b3             background chat b steps=1
   0.000 enqueue   b4             background chat b steps=1
   0.000 enqueue   b5             background chat b steps=1
   0.000 @ wait 120s
   2.000 loaded    a              2s pid=1001
   2.000 dispatch  a1             background step 1/1 -> a
   2.000 defer     b1             background b: b needs 9000 MB, 7384 MB can be had; kept: a (not served yet)
   2.000 mode      card           card background
   3.000 complete  a1             background a
   3.000 dispatch  a2             background step 1/1 -> a
   4.000 complete  a2             background a
   4.000 dispatch  a3             background step 1/1 -> a
   5.000 complete  a3             background a
   5.000 dispatch  a4             background step 1/1 -> a
   6.000 complete  a4             background a
   6.000 dispatch  a5             background step 1/1 -> a
   7.000 complete  a5             background a
   7.000 dispatch  a6             background step 1/1 -> a
   8.000 complete  a6             background a
   8.000 dispatch  a7             background step 1/1 -> a
   9.000 complete  a7             background a
   9.000 dispatch  a8             background step 1/1 -> a
  10.000 complete  a8             background a
  10.000 dispatch  a9             background step 1/1 -> a
  11.000 complete  a9             background a
  11.000 dispatch  a10            background step 1/1 -> a
  12.000 complete  a10            background a
  12.000 dispatch  a11            background step 1/1 -> a
  13.000 complete  a11            background a
  13.000 dispatch  a12            background step 1/1 -> a
  14.000 complete  a12            background a
  14.000 dispatch  a13            background step 1/1 -> a
  15.000 complete  a13            background a
  15.000 dispatch  a14            background step 1/1 -> a
  16.000 complete  a14            background a
  16.000 dispatch  a15            background step 1/1 -> a
  17.000 complete  a15            background a
  17.000 dispatch  a16            background step 1/1 -> a
  18.000 complete  a16            background a
  18.000 dispatch  a17            background step 1/1 -> a
  19.000 complete  a17            background a
  19.000 dispatch  a18            background step 1/1 -> a
  20.000 complete  a18            background a
  20.000 dispatch  a19            background step 1/1 -> a
  21.000 complete  a19            background a
  21.000 dispatch  a20            background step 1/1 -> a
  22.000 complete  a20            background a
  22.000 dispatch  a21            background step 1/1 -> a
  23.000 complete  a21            background a
  23.000 dispatch  a22            background step 1/1 -> a
  24.000 complete  a22            background a
  24.000 dispatch  a23            background step 1/1 -> a
  25.000 complete  a23            background a
  25.000 dispatch  a24            background step 1/1 -> a
  26.000 complete  a24            background a
  26.000 dispatch  a25            background step 1/1 -> a
  27.000 complete  a25            background a
  27.000 dispatch  a26            background step 1/1 -> a
  28.000 complete  a26            background a
  28.000 dispatch  a27            background step 1/1 -> a
  29.000 complete  a27            background a
  29.000 dispatch  a28            background step 1/1 -> a
  30.000 complete  a28            background a
  30.000 dispatch  a29            background step 1/1 -> a
  31.000 complete  a29            background a
  31.000 dispatch  a30            background step 1/1 -> a
  32.000 complete  a30            background a
  32.000 dispatch  a31            background step 1/1 -> a
  32.000 drain     a              make room for b, cost 22.5 (running=1)
  32.000 defer     b1             background b: making room for b: a must go first
  33.000 complete  a31            background a
  33.000 defer     a32            background a: b is loading; one load at a time
  33.000 evict     a              make room for b, cost 22.4 (running=0)
  33.000 mode      card           card idle
  33.000 defer     b1             background b: waiting until the card shows the memory of a as free
  33.170 unloaded  a              make room for b, cost 22.4
  33.170 load      b              reserve 9000 MB, wanted by background
  35.170 loaded    b              2s pid=1002
  35.170 dispatch  b1             background step 1/1 -> b
  35.170 defer     a32            background a: a needs 9000 MB, 7384 MB can be had; kept: b (not served yet)
  35.170 mode      card           card background
  36.170 complete  b1             background b
  36.170 dispatch  b2             background step 1/1 -> b
  37.170 complete  b2             background b
  37.170 dispatch  b3             background step 1/1 -> b
  38.170 complete  b3             background b
  38.170 dispatch  b4             background step 1/1 -> b
  39.170 complete  b4             background b
  39.170 dispatch  b5             background step 1/1 -> b
  40.170 complete  b5             background b
  40.170 mode      card           card idle
  65.170 evict     b              make room for a, cost 2.8 (running=0)
  65.170 defer     a32            background a: making room for a: b must go first
  65.170 defer     a32            background a: waiting until the card shows the memory of b as free
  65.340 unloaded  b              make room for a, cost 2.8
  65.340 load      a              reserve 9000 MB, wanted by background
  67.340 loaded    a              2s pid=1003
  67.340 dispatch  a32            background step 1/1 -> a
  67.340 mode      card           card background
  68.340 complete  a32            background a
  68.340 dispatch  a33            background step 1/1 -> a
  69.340 complete  a33            background a
  69.340 dispatch  a34            background step 1/1 -> a
  70.340 complete  a34            background a
  70.340 dispatch  a35            background step 1/1 -> a
  71.340 complete  a35            background a
  71.340 dispatch  a36            background step 1/1 -> a
  72.340 complete  a36            background a
  72.340 dispatch  a37            background step 1/1 -> a
  73.340 complete  a37            background a
  73.340 dispatch  a38            background step 1/1 -> a
  74.340 complete  a38            background a
  74.340 dispatch  a39            background step 1/1 -> a
  75.340 complete  a39            background a
  75.340 dispatch  a40            background step 1/1 -> a
  76.340 complete  a40            background a
  76.340 mode      card           card idle

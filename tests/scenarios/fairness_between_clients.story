# One client has queued ten requests before another asks for the first time: the other does not
# wait behind them all.
card 16GB
model m 4000MB slots=1 load=1s

@ submit heavy interactive m times=10 client=heavy
@ submit light interactive m client=light
@ wait 20s

must   dispatch .* heavy1 .* >> dispatch .* light >> dispatch .* heavy3
must   complete .* light >> complete .* heavy10
log
   0.000 @ submit heavy interactive m times=10 client=heavy
   0.000 enqueue   heavy1         interactive chat m steps=1
   0.000 mode      card           card interactive
   0.000 load      m              reserve 4000 MB, wanted by interactive
   0.000 enqueue   heavy2         interactive chat m steps=1
   0.000 enqueue   heavy3         interactive chat m steps=1
   0.000 enqueue   heavy4         interactive chat m steps=1
   0.000 enqueue   heavy5         interactive chat m steps=1
   0.000 enqueue   heavy6         interactive chat m steps=1
   0.000 enqueue   heavy7         interactive chat m steps=1
   0.000 enqueue   heavy8         interactive chat m steps=1
   0.000 enqueue   heavy9         interactive chat m steps=1
   0.000 enqueue   heavy10        interactive chat m steps=1
   0.000 @ submit light interactive m client=light
   0.000 enqueue   light          interactive chat m steps=1
   0.000 @ wait 20s
   1.000 loaded    m              1s pid=1001
   1.000 dispatch  heavy1         interactive step 1/1 -> m
   2.000 complete  heavy1         interactive m
   2.000 dispatch  light          interactive step 1/1 -> m
   3.000 complete  light          interactive m
   3.000 dispatch  heavy2         interactive step 1/1 -> m
   4.000 complete  heavy2         interactive m
   4.000 dispatch  heavy3         interactive step 1/1 -> m
   5.000 complete  heavy3         interactive m
   5.000 dispatch  heavy4         interactive step 1/1 -> m
   6.000 complete  heavy4         interactive m
   6.000 dispatch  heavy5         interactive step 1/1 -> m
   7.000 complete  heavy5         interactive m
   7.000 dispatch  heavy6         interactive step 1/1 -> m
   8.000 complete  heavy6         interactive m
   8.000 dispatch  heavy7         interactive step 1/1 -> m
   9.000 complete  heavy7         interactive m
   9.000 dispatch  heavy8         interactive step 1/1 -> m
  10.000 complete  heavy8         interactive m
  10.000 dispatch  heavy9         interactive step 1/1 -> m
  11.000 complete  heavy9         interactive m
  11.000 dispatch  heavy10        interactive step 1/1 -> m
  12.000 complete  heavy10        interactive m
  14.000 mode      card           card idle

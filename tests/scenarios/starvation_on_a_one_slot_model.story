# Chat after chat on a model with one slot. A background request for the same model waits for
# background_max_starvation, then takes the next free slot for one step; the chat behind it
# waits for that one step.
card 16GB
model m 4000MB slots=1 load=1s

@ submit warm-up interactive m
@ wait 5s
@ submit ambient background m work=500ms
@ submit chat interactive m work=1s times=8 client=chat
@ wait 12s

must   dispatch .* chat1 >> complete .* chat3 >> dispatch .* ambient .*\(share\) >> complete .* ambient >> dispatch .* chat
never  timeout
log
   0.000 @ submit warm-up interactive m
   0.000 enqueue   warm-up        interactive chat m steps=1
   0.000 mode      card           card interactive
   0.000 load      m              reserve 4000 MB, wanted by interactive
   0.000 @ wait 5s
   1.000 loaded    m              1s pid=1001
   1.000 dispatch  warm-up        interactive step 1/1 -> m
   2.000 complete  warm-up        interactive m
   4.000 mode      card           card idle
   5.000 @ submit ambient background m work=500ms
   5.000 enqueue   ambient        background chat m steps=1
   5.000 defer     ambient        background m: the last free slot of m is kept for interactive
   5.000 @ submit chat interactive m work=1s times=8 client=chat
   5.000 enqueue   chat1          interactive chat m steps=1
   5.000 mode      card           card interactive
   5.000 defer     ambient        background m: interactive work is active; next step in 3s
   5.000 dispatch  chat1          interactive step 1/1 -> m
   5.000 enqueue   chat2          interactive chat m steps=1
   5.000 enqueue   chat3          interactive chat m steps=1
   5.000 enqueue   chat4          interactive chat m steps=1
   5.000 enqueue   chat5          interactive chat m steps=1
   5.000 enqueue   chat6          interactive chat m steps=1
   5.000 enqueue   chat7          interactive chat m steps=1
   5.000 enqueue   chat8          interactive chat m steps=1
   5.000 @ wait 12s
   6.000 complete  chat1          interactive m
   6.000 dispatch  chat2          interactive step 1/1 -> m
   7.000 complete  chat2          interactive m
   7.000 dispatch  chat3          interactive step 1/1 -> m
   8.000 complete  chat3          interactive m
   8.000 dispatch  ambient        background step 1/1 -> m (share)
   8.500 complete  ambient        background m
   8.500 dispatch  chat4          interactive step 1/1 -> m
   9.500 complete  chat4          interactive m
   9.500 dispatch  chat5          interactive step 1/1 -> m
  10.500 complete  chat5          interactive m
  10.500 dispatch  chat6          interactive step 1/1 -> m
  11.500 complete  chat6          interactive m
  11.500 dispatch  chat7          interactive step 1/1 -> m
  12.500 complete  chat7          interactive m
  12.500 dispatch  chat8          interactive step 1/1 -> m
  13.500 complete  chat8          interactive m
  15.500 mode      card           card idle

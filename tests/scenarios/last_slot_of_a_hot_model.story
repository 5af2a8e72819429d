# A model with two slots is hot. Background may use it while nobody chats, but not its last free
# slot: the next chat finds one at once.
card 16GB
model m 4000MB slots=2 load=1s

@ submit warm-up interactive m
@ wait 5s
@ submit ambient background m work=2s times=2
@ wait 500ms
@ submit chat interactive m work=300ms
@ wait 10s

must   dispatch .* ambient1 >> defer .* ambient2 .*last free slot of m is kept >> enqueue .* chat >> dispatch .* chat >> complete .* chat
never  dispatch .* ambient2 (?!.*\(share\)).*\n.*chat
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
   5.000 @ submit ambient background m work=2s times=2
   5.000 enqueue   ambient1       background chat m steps=1
   5.000 dispatch  ambient1       background step 1/1 -> m
   5.000 mode      card           card background
   5.000 enqueue   ambient2       background chat m steps=1
   5.000 defer     ambient2       background m: the last free slot of m is kept for interactive
   5.000 @ wait 500ms
   5.500 @ submit chat interactive m work=300ms
   5.500 enqueue   chat           interactive chat m steps=1
   5.500 mode      card           card interactive
   5.500 defer     ambient2       background m: interactive work is active; next step in 2.5s
   5.500 dispatch  chat           interactive step 1/1 -> m
   5.500 @ wait 10s
   5.800 complete  chat           interactive m
   7.000 complete  ambient1       background m
   7.800 mode      card           card idle
   7.800 dispatch  ambient2       background step 1/1 -> m
   7.800 mode      card           card background
   9.800 complete  ambient2       background m
   9.800 mode      card           card idle

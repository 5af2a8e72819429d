# Another program takes 6 GB of the card. A model that fits only the empty card waits and says
# so, and starts by itself when the memory is back.
card 16GB
model m 12000MB load=2s

@ foreign 6GB
@ sample times=8
@ submit chat interactive m
@ sample times=8
@ foreign 0MB
@ sample times=30
@ wait 5s

must   memory .*other programs hold 6144 MB >> defer .* chat .*other programs hold 6144 MB >> memory .*other programs hold 0 MB >> load .* m >> complete .* chat
never  refuse
log
   0.000 @ foreign 6GB
   0.000 @ sample times=8
   1.000 memory    card           other programs hold 0 MB of card
   2.500 memory    card           other programs hold 6144 MB of card
   4.000 @ submit chat interactive m
   4.000 enqueue   chat           interactive chat m steps=1
   4.000 mode      card           card interactive
   4.000 defer     chat           interactive m: m needs 12000 MB; other programs hold 6144 MB of the card
   4.000 @ sample times=8
   8.000 @ foreign 0MB
   8.000 @ sample times=30
  18.500 memory    card           other programs hold 0 MB of card
  18.500 load      m              reserve 12000 MB, wanted by interactive
  20.500 loaded    m              2s pid=1001
  20.500 dispatch  chat           interactive step 1/1 -> m
  21.500 complete  chat           interactive m
  23.000 @ wait 5s
  23.500 mode      card           card idle

# A person chats with gemma4 and gets the 12B. An ambient request for the same family takes the
# E4B beside it: it fits in free memory and disturbs nothing.
card 16GB headroom=512MB
model gemma4-12b 8488MB slots=2 load=3s capabilities=chat,vision
model gemma4-e4b 4118MB slots=2 load=1500ms capabilities=chat,vision
model gemma4-e2b 2900MB slots=2 load=1s capabilities=chat,vision
family gemma4 preferred=gemma4-12b balanced=gemma4-e4b compact=gemma4-e2b

@ submit chat interactive gemma4 work=6s
@ wait 4s
@ submit ambient background gemma4 needs=vision
@ wait 20s

must   variant .* chat .*gemma4 -> gemma4-12b >> dispatch .* chat .*gemma4-12b >> enqueue .* ambient >> load .* gemma4-e4b >> variant .* ambient .*gemma4 -> gemma4-e4b .*gemma4-12b ready, hot >> complete .* ambient .*gemma4-e4b
never  evict
never  dispatch .* ambient .*gemma4-12b
log
   0.000 @ submit chat interactive gemma4 work=6s
   0.000 enqueue   chat           interactive chat gemma4 steps=1
   0.000 mode      card           card interactive
   0.000 load      gemma4-12b     reserve 8488 MB, wanted by interactive
   0.000 @ wait 4s
   3.000 loaded    gemma4-12b     3s pid=1001
   3.000 variant   chat           gemma4 -> gemma4-12b (resident)
   3.000 dispatch  chat           interactive step 1/1 -> gemma4-12b
   4.000 @ submit ambient background gemma4 needs=vision
   4.000 enqueue   ambient        background chat gemma4 steps=1
   4.000 defer     ambient        background gemma4: interactive work is active; next step in 3s
   4.000 @ wait 20s
   7.000 load      gemma4-e4b     reserve 4118 MB, wanted by background
   8.500 loaded    gemma4-e4b     1.5s pid=1002
   8.500 variant   ambient        gemma4 -> gemma4-e4b (resident); gemma4-12b ready, hot
   8.500 dispatch  ambient        background step 1/1 -> gemma4-e4b (share)
   9.000 complete  chat           interactive gemma4-12b
   9.500 complete  ambient        background gemma4-e4b
  11.000 mode      card           card idle

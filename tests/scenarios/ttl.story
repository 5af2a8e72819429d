# A model with a ttl is unloaded after that long without use, and loaded again when asked for;
# one without stays.
card 16GB
model short 4000MB load=1s ttl=30s
model stays 4000MB load=1s

@ submit one interactive short
@ submit two interactive stays
@ wait 60s
@ submit three interactive short
@ wait 5s

must   complete .* one >> unload .* short .*idle for 30s >> unloaded .* short >> load .* short >> complete .* three
never  unload .* stays
log
   0.000 @ submit one interactive short
   0.000 enqueue   one            interactive chat short steps=1
   0.000 mode      card           card interactive
   0.000 load      short          reserve 4000 MB, wanted by interactive
   0.000 @ submit two interactive stays
   0.000 enqueue   two            interactive chat stays steps=1
   0.000 defer     two            interactive stays: short is loading; one load at a time
   0.000 @ wait 60s
   1.000 loaded    short          1s pid=1001
   1.000 dispatch  one            interactive step 1/1 -> short
   1.000 load      stays          reserve 4000 MB, wanted by interactive
   2.000 complete  one            interactive short
   2.000 loaded    stays          1s pid=1002
   2.000 dispatch  two            interactive step 1/1 -> stays
   3.000 complete  two            interactive stays
   5.000 mode      card           card idle
  32.000 unload    short          idle for 30s (ttl)
  32.170 unloaded  short          idle for 30s (ttl)
  60.000 @ submit three interactive short
  60.000 enqueue   three          interactive chat short steps=1
  60.000 mode      card           card interactive
  60.000 load      short          reserve 4000 MB, wanted by interactive
  60.000 @ wait 5s
  61.000 loaded    short          1s pid=1003
  61.000 dispatch  three          interactive step 1/1 -> short
  62.000 complete  three          interactive short
  64.000 mode      card           card idle

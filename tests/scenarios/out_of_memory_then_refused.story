# A model runs out of memory while it loads. The free memory at which it failed is remembered:
# the next attempt makes more room first, and when no more can be made the request is refused
# with the numbers, without one more crash.
card 16GB
model big 12000MB load=2s
model small 3000MB load=1s

@ submit s interactive small
@ wait 5s
@ fail big out_of_memory times=2
@ submit b interactive big
@ wait 30s
@ submit again interactive big
@ wait 1s

must   fail .* big .*out_of_memory >> evict .* small .*make room for big >> load .* big >> fail .* big .*out_of_memory
must   refuse .* again .*(ran out of memory with|failed)
never  breaker .*after 3
log
   0.000 @ submit s interactive small
   0.000 enqueue   s              interactive chat small steps=1
   0.000 mode      card           card interactive
   0.000 load      small          reserve 3000 MB, wanted by interactive
   0.000 @ wait 5s
   1.000 loaded    small          1s pid=1001
   1.000 dispatch  s              interactive step 1/1 -> small
   2.000 complete  s              interactive small
   4.000 mode      card           card idle
   5.000 @ fail big out_of_memory times=2
   5.000 @ submit b interactive big
   5.000 enqueue   b              interactive chat big steps=1
   5.000 mode      card           card interactive
   5.000 load      big            reserve 12000 MB, wanted by interactive
   5.000 @ wait 30s
   7.000 fail      big            load of big failed (out_of_memory): its last words
   7.000 unloaded  big            big failed to load: its last words
   7.000 evict     small          make room for big, cost 1.2 (running=0)
   7.000 defer     b              interactive big: making room for big: small must go first
   7.000 defer     b              interactive big: waiting until the card shows the memory of small as free
   7.170 unloaded  small          make room for big, cost 1.2
   7.170 load      big            reserve 13385 MB, wanted by interactive
   9.170 fail      big            load of big failed (out_of_memory): its last words
   9.170 unloaded  big            big failed to load: its last words
   9.170 refuse    b              interactive chat big: big needs 16385 MB, 16384 MB can be freed at most; it ran out of memory with 16384 MB free; lower ctx or parallel
  11.170 mode      card           card idle
  35.000 @ submit again interactive big
  35.000 enqueue   again          interactive chat big steps=1
  35.000 mode      card           card interactive
  35.000 refuse    again          interactive chat big: big needs 16385 MB, 16384 MB can be freed at most; it ran out of memory with 16384 MB free; lower ctx or parallel
  35.000 @ wait 1s

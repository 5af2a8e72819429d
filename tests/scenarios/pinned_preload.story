# A pinned model is loaded before anybody asks, and a person's request that does not fit beside
# it is refused with the numbers: nothing is evicted in vain.
card 16GB
model nomic-embed 400MB slots=4 load=500ms pinned capabilities=embedding
model small 3000MB load=1s
model huge 16200MB load=9s

@ wait 2s
@ submit chat interactive small
@ wait 5s
@ submit big interactive huge
@ wait 1s

must   load .* nomic-embed .*pinned >> loaded .* nomic-embed >> complete .* chat >> refuse .* big .*needs 16200 MB, 15984 MB can be freed at most .*nomic-embed pinned
never  evict
log
   0.000 load      nomic-embed    reserve 400 MB, pinned
   0.000 @ wait 2s
   0.500 loaded    nomic-embed    500ms pid=1001
   2.000 @ submit chat interactive small
   2.000 enqueue   chat           interactive chat small steps=1
   2.000 mode      card           card interactive
   2.000 load      small          reserve 3000 MB, wanted by interactive
   2.000 @ wait 5s
   3.000 loaded    small          1s pid=1002
   3.000 dispatch  chat           interactive step 1/1 -> small
   4.000 complete  chat           interactive small
   6.000 mode      card           card idle
   7.000 @ submit big interactive huge
   7.000 enqueue   big            interactive chat huge steps=1
   7.000 mode      card           card interactive
   7.000 refuse    big            interactive chat huge: huge needs 16200 MB, 15984 MB can be freed at most (nomic-embed pinned); lower ctx or parallel, or unpin
   7.000 @ wait 1s

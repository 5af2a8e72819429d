# A model that fails to load again and again is not tried for a while; the answer says when it
# will be. One probe is let through after the backoff, and an admin can close the gate at once.
card 16GB
model m 4000MB load=1s
policy breaker.failures=2 breaker.backoff=30s

@ fail m crashed times=3
@ submit first interactive m
@ wait 2s
@ submit second interactive m
@ wait 2s
@ submit third interactive m
@ wait 32s
@ submit probe interactive m
@ wait 5s
@ submit fourth interactive m
@ wait 1s
@ admin enable m
@ submit fifth interactive m
@ wait 5s

must   refuse .* first >> breaker .* m .*open after 2 >> refuse .* third .*failed 2 times .*next try in >> load .* m >> refuse .* probe >> refuse .* fourth >> breaker .* closed by admin >> load .* m >> complete .* fifth
never  dispatch .* (first|second|third|probe|fourth)\b
log
   0.000 @ fail m crashed times=3
   0.000 @ submit first interactive m
   0.000 enqueue   first          interactive chat m steps=1
   0.000 mode      card           card interactive
   0.000 load      m              reserve 4000 MB, wanted by interactive
   0.000 @ wait 2s
   1.000 fail      m              load of m failed (crashed): its last words
   1.000 refuse    first          interactive chat m: m failed to load: its last words
   1.000 unloaded  m              m failed to load: its last words
   2.000 @ submit second interactive m
   2.000 enqueue   second         interactive chat m steps=1
   2.000 load      m              reserve 4000 MB, wanted by interactive
   2.000 @ wait 2s
   3.000 fail      m              load of m failed (crashed): its last words
   3.000 breaker   m              open after 2 failures, next try in 30s: its last words
   3.000 refuse    second         interactive chat m: m failed to load: its last words
   3.000 unloaded  m              m failed to load: its last words
   4.000 @ submit third interactive m
   4.000 enqueue   third          interactive chat m steps=1
   4.000 refuse    third          interactive chat m: m failed 2 times (its last words); next try in 29s, or POST /admin/models/m/enable
   4.000 @ wait 32s
   6.000 mode      card           card idle
  36.000 @ submit probe interactive m
  36.000 enqueue   probe          interactive chat m steps=1
  36.000 mode      card           card interactive
  36.000 load      m              reserve 4000 MB, wanted by interactive
  36.000 @ wait 5s
  37.000 fail      m              load of m failed (crashed): its last words
  37.000 breaker   m              open after 3 failures, next try in 1m00s: its last words
  37.000 refuse    probe          interactive chat m: m failed to load: its last words
  37.000 unloaded  m              m failed to load: its last words
  39.000 mode      card           card idle
  41.000 @ submit fourth interactive m
  41.000 enqueue   fourth         interactive chat m steps=1
  41.000 mode      card           card interactive
  41.000 refuse    fourth         interactive chat m: m failed 3 times (its last words); next try in 56s, or POST /admin/models/m/enable
  41.000 @ wait 1s
  42.000 @ admin enable m
  42.000 breaker   m              closed by admin
  42.000 @ submit fifth interactive m
  42.000 enqueue   fifth          interactive chat m steps=1
  42.000 load      m              reserve 4000 MB, wanted by interactive
  42.000 @ wait 5s
  43.000 loaded    m              1s pid=1001
  43.000 dispatch  fifth          interactive step 1/1 -> m
  44.000 complete  fifth          interactive m
  46.000 mode      card           card idle

# Batch runs when background has nothing to run, or when it has waited batch_max_starvation:
# then it gets one step although background is still busy.
card 16GB
model m 4000MB slots=1 load=1s
policy batch_max_starvation=10s

@ submit ocr batch m work=500ms times=2
@ submit index background m work=500ms times=40
@ wait 40s

must   enqueue .* ocr1 >> dispatch .* index1 .* >> dispatch .* ocr1 >> dispatch .* index >> complete .* index40
must   dispatch .* ocr2
log
   0.000 @ submit ocr batch m work=500ms times=2
   0.000 enqueue   ocr1           batch chat m steps=1
   0.000 load      m              reserve 4000 MB, wanted by batch
   0.000 enqueue   ocr2           batch chat m steps=1
   0.000 @ submit index background m work=500ms times=40
   0.000 enqueue   index1         background chat m steps=1
   0.000 enqueue   index2         background chat m steps=1
   0.000 enqueue   index3         background chat m steps=1
   0.000 enqueue   index4         background chat m steps=1
   0.000 enqueue   index5         background chat m steps=1
   0.000 enqueue   index6         background chat m steps=1
   0.000 enqueue   index7         background chat m steps=1
   0.000 enqueue   index8         background chat m steps=1
   0.000 enqueue   index9         background chat m steps=1
   0.000 enqueue   index10        background chat m steps=1
   0.000 enqueue   index11        background chat m steps=1
   0.000 enqueue   index12        background chat m steps=1
   0.000 enqueue   index13        background chat m steps=1
   0.000 enqueue   index14        background chat m steps=1
   0.000 enqueue   index15        background chat m steps=1
   0.000 enqueue   index16        background chat m steps=1
   0.000 enqueue   index17        background chat m steps=1
   0.000 enqueue   index18        background chat m steps=1
   0.000 enqueue   index19        background chat m steps=1
   0.000 enqueue   index20        background chat m steps=1
   0.000 enqueue   index21        background chat m steps=1
   0.000 enqueue   index22        background chat m steps=1
   0.000 enqueue   index23        background chat m steps=1
   0.000 enqueue   index24        background chat m steps=1
   0.000 enqueue   index25        background chat m steps=1
   0.000 enqueue   index26        background chat m steps=1
   0.000 enqueue   index27        background chat m steps=1
   0.000 enqueue   index28        background chat m steps=1
   0.000 enqueue   index29        background chat m steps=1
   0.000 enqueue   index30        background chat m steps=1
   0.000 enqueue   index31        background chat m steps=1
   0.000 enqueue   index32        background chat m steps=1
   0.000 enqueue   index33        background chat m steps=1
   0.000 enqueue   index34        background chat m steps=1
   0.000 enqueue   index35        background chat m steps=1
   0.000 enqueue   index36        background chat m steps=1
   0.000 enqueue   index37        background chat m steps=1
   0.000 enqueue   index38        background chat m steps=1
   0.000 enqueue   index39        background chat m steps=1
   0.000 enqueue   index40        background chat m steps=1
   0.000 @ wait 40s
   1.000 loaded    m              1s pid=1001
   1.000 dispatch  index1         background step 1/1 -> m
   1.000 defer     ocr1           batch m: background work goes first
   1.000 mode      card           card background
   1.500 complete  index1         background m
   1.500 dispatch  index2         background step 1/1 -> m
   2.000 complete  index2         background m
   2.000 dispatch  index3         background step 1/1 -> m
   2.500 complete  index3         background m
   2.500 dispatch  index4         background step 1/1 -> m
   3.000 complete  index4         background m
   3.000 dispatch  index5         background step 1/1 -> m
   3.500 complete  index5         background m
   3.500 dispatch  index6         background step 1/1 -> m
   4.000 complete  index6         background m
   4.000 dispatch  index7         background step 1/1 -> m
   4.500 complete  index7         background m
   4.500 dispatch  index8         background step 1/1 -> m
   5.000 complete  index8         background m
   5.000 dispatch  index9         background step 1/1 -> m
   5.500 complete  index9         background m
   5.500 dispatch  index10        background step 1/1 -> m
   6.000 complete  index10        background m
   6.000 dispatch  index11        background step 1/1 -> m
   6.500 complete  index11        background m
   6.500 dispatch  index12        background step 1/1 -> m
   7.000 complete  index12        background m
   7.000 dispatch  index13        background step 1/1 -> m
   7.500 complete  index13        background m
   7.500 dispatch  index14        background step 1/1 -> m
   8.000 complete  index14        background m
   8.000 dispatch  index15        background step 1/1 -> m
   8.500 complete  index15        background m
   8.500 dispatch  index16        background step 1/1 -> m
   9.000 complete  index16        background m
   9.000 dispatch  index17        background step 1/1 -> m
   9.500 complete  index17        background m
   9.500 dispatch  index18        background step 1/1 -> m
  10.000 complete  index18        background m
  10.000 dispatch  ocr1           batch step 1/1 -> m
  10.000 defer     ocr2           batch m: background work goes first
  10.000 mode      card           card batch
  10.500 complete  ocr1           batch m
  10.500 dispatch  index19        background step 1/1 -> m
  10.500 mode      card           card background
  11.000 complete  index19        background m
  11.000 dispatch  index20        background step 1/1 -> m
  11.500 complete  index20        background m
  11.500 dispatch  index21        background step 1/1 -> m
  12.000 complete  index21        background m
  12.000 dispatch  index22        background step 1/1 -> m
  12.500 complete  index22        background m
  12.500 dispatch  index23        background step 1/1 -> m
  13.000 complete  index23        background m
  13.000 dispatch  index24        background step 1/1 -> m
  13.500 complete  index24        background m
  13.500 dispatch  index25        background step 1/1 -> m
  14.000 complete  index25        background m
  14.000 dispatch  index26        background step 1/1 -> m
  14.500 complete  index26        background m
  14.500 dispatch  index27        background step 1/1 -> m
  15.000 complete  index27        background m
  15.000 dispatch  index28        background step 1/1 -> m
  15.500 complete  index28        background m
  15.500 dispatch  index29        background step 1/1 -> m
  16.000 complete  index29        background m
  16.000 dispatch  index30        background step 1/1 -> m
  16.500 complete  index30        background m
  16.500 dispatch  index31        background step 1/1 -> m
  17.000 complete  index31        background m
  17.000 dispatch  index32        background step 1/1 -> m
  17.500 complete  index32        background m
  17.500 dispatch  index33        background step 1/1 -> m
  18.000 complete  index33        background m
  18.000 dispatch  index34        background step 1/1 -> m
  18.500 complete  index34        background m
  18.500 dispatch  index35        background step 1/1 -> m
  19.000 complete  index35        background m
  19.000 dispatch  index36        background step 1/1 -> m
  19.500 complete  index36        background m
  19.500 dispatch  index37        background step 1/1 -> m
  20.000 complete  index37        background m
  20.000 dispatch  index38        background step 1/1 -> m
  20.500 complete  index38        background m
  20.500 dispatch  ocr2           batch step 1/1 -> m
  20.500 mode      card           card batch
  21.000 complete  ocr2           batch m
  21.000 dispatch  index39        background step 1/1 -> m
  21.000 mode      card           card background
  21.500 complete  index39        background m
  21.500 dispatch  index40        background step 1/1 -> m
  22.000 complete  index40        background m
  22.000 mode      card           card idle

"""`foretell train-tagger`: an encoder learns how long answers will be.

`inputs` turns examples into arrays, `network` is the model, `loop` trains it, `state` lets a run go
on where it stopped, `export` makes what the tagger serves, `card` tells how good it is.
"""

"""What one rank computes, one file a framework; the loop around it is in loop.py, and the same for all.

A learner holds the network, the optimizer and this rank's data, and has

    train(steps, after_step)    take the steps (indices, n_global, lr) until after_step is true
    sums()                      [loss, correct answers, samples] of this rank since reset_sums()
    evaluate()                  the same of this rank's test samples
    live_bytes                  this rank's bytes of the model's states (see memory.py), None if not known
    weights()                   all parameters, as arrays
    state(), load_state(state)  what every rank has alike, for a checkpoint
    own_state(), load_own_state(state)    what is each rank's own
    load_sums(sums)             what own_state() calls "sums" alone
"""

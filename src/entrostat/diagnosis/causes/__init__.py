"""What goes with a movement of entropy, each cause with its evidence and how plain it is.

Nothing here proves that one thing made another: a log has no experiment in it. A cause is a
quantity that by its paper moves entropy, was large enough to, and was so when entropy moved.
"""

"""A call that waits for its turn, and keeps what it is told."""


class Told:
    def __init__(self):
        self.said = []  # the instance to go to, or the code of the error and whether it ran

    def go(self, dispatch):
        self.said.append(dispatch.instance_id)

    def give_up(self, error, *, runs):
        self.said.append((error.code, runs))

"""One run: build, train, evaluate, checkpoint, finish, generate."""

"""What `jointrl env new` writes: one whole environment of each kind, named Template here. Each passes its check."""

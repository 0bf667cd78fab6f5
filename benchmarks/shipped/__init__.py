"""MaxText's shipped configurations: the policy that its authors chose against our plan in its bytes."""

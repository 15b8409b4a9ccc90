"""How projections are kept current: reading, folding, writing, telling."""

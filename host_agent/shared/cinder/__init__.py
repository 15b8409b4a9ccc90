"""Cinder's API as this product uses it, behind `contract.ports`; the service uses it, too."""

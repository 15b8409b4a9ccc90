"""Cinder's API as this product uses it, behind `shared.ports`; the service uses it, too."""

"""Guests: rules that hold for every hypervisor, and libvirt itself."""

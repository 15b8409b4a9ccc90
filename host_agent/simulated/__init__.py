"""A host without hypervisor or storage, for trial and tests."""

"""Commands about servers, their attachments and volumes, and hosts."""

"""Commands about servers, their attachments and volumes, and the hosts they are on."""

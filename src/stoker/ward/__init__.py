"""The fault ward: faults on purpose, and the public test kit. Nothing else imports it."""

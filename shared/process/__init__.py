"""What every service's process does: start and stop, be a member, log and measure."""

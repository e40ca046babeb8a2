"""From files to the table of images that training reads on the device."""

"""What an administrator sets up once, and the controller that starts waiting gangs."""

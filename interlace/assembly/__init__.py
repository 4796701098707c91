"""A live server put together from settings: the only room that knows every concrete class."""

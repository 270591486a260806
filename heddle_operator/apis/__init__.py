"""The HeddleJob resource as data, the labels of its objects, and errors."""

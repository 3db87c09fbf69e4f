"""Model checker: explores every order of events on small nodes. Does cleanup ever release an address in use?"""

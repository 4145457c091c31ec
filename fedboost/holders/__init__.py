"""Holders of rows, which compute a party's answers: with whole rows, or with some columns of them."""

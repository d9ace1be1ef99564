"""The suite `seq2seq`: translation with and without attention."""

from .prediction import prediction_file_for as prediction_file_for

from .stage import whole_number as whole_number

from .gate import GateConfig as GateConfig
from .gate import PromotionGate as PromotionGate
from .promotion import Promotion as Promotion
from .promotion import PromotionConfig as PromotionConfig

from .autoscale import open_scaler as open_scaler
from .deployment import deployment_of as deployment_of
from .hardware_options import HardwareOptions as HardwareOptions
from .hardware_options import plan_options as plan_options
from .hardware_report import answer_figures as answer_figures
from .hardware_report import print_answer as print_answer
from .ownership import Terms as Terms

"""Attribution of failures to calls or instances, and the consequences."""

/* Address types of PCCL, for programs that include them by this name: they are in pccl.h, which needs no other file. */
#ifndef CCOIP_INET_H
#define CCOIP_INET_H

#include "pccl.h"

#endif /* CCOIP_INET_H */

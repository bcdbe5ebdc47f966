/* Default ports of PCCL 1.0. The master's is the default of pccl-master too; peers of this library listen on one port only,
   chosen by the system unless pcclCommConfig_t.listen says otherwise, so the other three are names without effect. */
#ifndef CCOIP_H
#define CCOIP_H

#define CCOIP_PROTOCOL_PORT_MASTER 48148
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK 48151

#endif /* CCOIP_H */

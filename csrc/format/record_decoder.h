#pragma once

#include <protozero/data_view.hpp>

#include <string>

#include "format/trace_records.h"

// Messages of trace.proto without columns, from their bytes to plain values, as the official protobuf library reads
// them: fields in any order, the last of several counts, unknown ones are passed over, missing ones have the value that
// the schema gives them (0, not the default of the struct).
//
// Throws protozero::exception when the bytes are not such a message.

namespace smon_rt {

TraceIdentity decode_identity(protozero::data_view bytes);
TraceNames decode_names(protozero::data_view bytes);
TraceLosses decode_losses(protozero::data_view bytes);
TraceClockSnapshot decode_clock_snapshot(protozero::data_view bytes);
TraceClockMap decode_clock_map(protozero::data_view bytes);
TraceRecorderCost decode_recorder_cost(protozero::data_view bytes);
std::string decode_end(protozero::data_view bytes);
TraceLeftover decode_leftover(protozero::data_view bytes);
TraceCommCounts decode_comm_counts(protozero::data_view bytes);

}  // namespace smon_rt

#include "tools/sim/plot.h"

#include <algorithm>
#include <cstdio>

namespace prd::sim {
namespace {

// A gnuplot string: in single quotes, which are doubled inside.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "'";
}

Status Draw(const std::string& path, const std::string& script) {
  FILE* pipe = popen("gnuplot -", "w");
  if (pipe == nullptr) return Status(Code::kUnavailable, "gnuplot cannot be started");
  const std::size_t written = std::fwrite(script.data(), 1, script.size(), pipe);
  const int rc = pclose(pipe);
  if (written != script.size() || rc != 0) {
    return Status(Code::kUnavailable, path + ": gnuplot did not draw it (is gnuplot installed?)");
  }
  return Status::Ok();
}

std::string Head(const std::string& path, const std::string& title, int height) {
  return "set terminal svg size 1000," + std::to_string(height) +
         " noenhanced background 'white'\nset output " + Quoted(path) + "\nset title " +
         Quoted(title) + "\nset key outside below\n";
}

double Seconds(Instant at) { return static_cast<double>(at.ns) / 1e9; }

}  // namespace

Status PlotTimeline(const std::string& path, const std::string& title,
                    const std::vector<Slice>& slices, std::size_t workers, double to_s) {
  const int height = static_cast<int>(std::min<std::size_t>(120 + 24 * workers, 2000));
  std::string script = Head(path, title, height);
  script += "set xlabel 'seconds'\nset ylabel 'worker'\nset yrange [-0.6:" +
            std::to_string(static_cast<double>(workers) - 0.4) +
            "] reverse\nset ytics 1\nset style fill solid noborder\n"
            "plot '-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#4c78a8' title 'compute', "
            "'-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#e0e0e0' title 'wait', "
            "'-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#f58518' title 'reduce'\n";
  for (const auto kind : {Slice::Kind::kCompute, Slice::Kind::kWait, Slice::Kind::kReduce}) {
    script += "0 -9 0 0 -9 -9\n";  // a plot with no data at all is an error
    for (const Slice& slice : slices) {
      if (slice.kind != kind || (to_s > 0 && Seconds(slice.from) > to_s)) continue;
      char line[160];
      std::snprintf(line, sizeof line, "%.9g %u %.9g %.9g %.2f %.2f\n", Seconds(slice.from),
                    slice.worker, Seconds(slice.from), Seconds(slice.to), slice.worker - 0.4,
                    slice.worker + 0.4);
      script += line;
    }
    script += "e\n";
  }
  return Draw(path, script);
}

Status PlotLoss(const std::string& path, const std::string& title,
                const std::vector<std::pair<std::string, std::vector<LossPoint>>>& curves) {
  if (curves.empty()) return Status(Code::kInvalidArgument, path + ": there is no loss to draw");
  std::string script = Head(path, title, 600);
  script += "set xlabel 'seconds'\nset ylabel 'loss above the least'\nset logscale y\nplot ";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    script += (i > 0 ? ", " : "") + std::string("'-' using 1:2 with lines lw 2 title ") +
              Quoted(curves[i].first);
  }
  script += "\n";
  for (const auto& [name, points] : curves) {
    for (const LossPoint& point : points) {
      char line[80];
      std::snprintf(line, sizeof line, "%.9g %.9g\n", Seconds(point.at),
                    std::max(point.loss, 1e-12));
      script += line;
    }
    script += "e\n";
  }
  return Draw(path, script);
}

}  // namespace prd::sim

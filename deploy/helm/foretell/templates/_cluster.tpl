{{/* The cluster file, from which every process has its settings. */}}
{{- define "foretell.cluster" -}}
{{- $root := . -}}
{{- $given := .Values.cluster -}}
{{- $name := include "foretell.name" . -}}
{{- $models := dict -}}
{{- $engines := list -}}
{{- $names := dict -}}
{{- range $index, $model := .Values.models -}}
{{- if hasKey $names .name }}{{ fail (printf "models.%d.name: two items of models are called %s" $index .name) }}{{ end -}}
{{- $_ := set $names .name true -}}
{{- $path := .path | default "" -}}
{{- with get $models .model }}{{ if ne .path $path }}{{ fail (printf "models.%d.path: another item has %s from %q" $index $model.model .path) }}{{ end }}{{ end -}}
{{- $_ := set $models .model (dict "path" $path) -}}
{{- $of := dict "root" $root "model" . -}}
{{- $set := include "foretell.engine" $of -}}
{{- $args := list -}}
{{- range include "foretell.engine.args" $of | fromJsonArray }}{{ $args = append $args (printf "'%s'" (replace "'" "'\"'\"'" .)) }}{{ end -}}
{{- range $ordinal := until (int (include "foretell.places" .)) -}}
{{- $engine := dict "name" (printf "%s-%d" $set $ordinal) "host" (printf "%s-%d.%s" $set $ordinal $set) "port" 8000 "predictor_port" 50051 "model" $model.model "kind" ($model.kind | default "vllm") "gpus" ($model.gpus | default 1 | int) -}}
{{- with $model.profile }}{{ $_ := set $engine "profile" . }}{{ end -}}
{{- if $model.offline }}{{ $_ := set $engine "offline" true }}{{ end -}}
{{- with $args }}{{ $_ := set $engine "args" (join " " .) }}{{ end -}}
{{- $engines = append $engines $engine -}}
{{- end -}}
{{- end -}}
{{- $schedulers := merge (dict "host" (printf "%s-scheduler" $name) "listen" "0.0.0.0" "port" 8000 "replicas" (include "foretell.schedulers" . | int)) (deepCopy $given.schedulers) -}}
{{- if .Values.secrets.apiKeys }}{{ $_ := set $schedulers "api_keys_file" "/etc/foretell/secrets/api-keys" }}{{ end -}}
{{- if .Values.secrets.engineApiKey }}{{ $_ := set $schedulers "engine_api_key_file" "/etc/foretell/secrets/engine-api-key" }}{{ end -}}
{{- $traffic := dict "secret_file" "/etc/foretell/secrets/traffic" -}}
{{- if .Values.trafficTls.secretName }}{{ $traffic = merge $traffic (dict "tls_certificate" "/etc/foretell/secrets/tls.crt" "tls_key" "/etc/foretell/secrets/tls.key" "tls_authority" "/etc/foretell/secrets/ca.crt") }}{{ end -}}
{{- $file := dict "name" "foretell" "run_dir" "/run/foretell" "models" $models "engines" $engines "policy" $given.policy "targets" $given.targets "schedulers" $schedulers "traffic" $traffic "observability" (merge (dict "request_log" false) (deepCopy $given.observability)) -}}
{{- $_ := set $file "tagger" (merge (dict "host" (printf "%s-tagger" $name) "port" 50051) (deepCopy $given.tagger)) -}}
{{- $scaled := include "foretell.provisioned" . | fromJson -}}
{{- if $scaled -}}
{{- $_ := set $file "provisioning" (merge (dict "minimum" (int $scaled.autoscaling.minimum) "maximum" (int $scaled.autoscaling.maximum)) (deepCopy $given.provisioning)) -}}
{{- $_ := set $schedulers "engine_wait_s" (max (($schedulers.engine_wait_s | default 10) | int) (($given.provisioning.give_up_s | default 900) | int)) -}}
{{- end -}}
{{- if .Values.batch.enabled }}{{ $_ := set $file "batches" (merge (dict "folder" "/var/lib/foretell/batches") (deepCopy $given.batches)) }}{{ end -}}
{{- $file | toYaml -}}
{{- end }}

{{/* What of it only a restart brings to a component: (dict "root" $ "component" .. "model" ..).
     Schedulers read the engines again by themselves; vLLM reads none of it. */}}
{{- define "foretell.settings" -}}
{{- $file := include "foretell.cluster" .root | fromYaml -}}
{{- $read := dict "scheduler" (list "models" "policy" "targets" "schedulers" "tagger") "tagger" (list "tagger") "batch" (list "batches" "targets") "provisioner" (list "models" "engines" "provisioning") "engine" list "engine-worker" list -}}
{{- $found := dict -}}
{{- range concat (list "traffic" "observability") (get $read .component) }}{{ $_ := set $found . (get $file .) }}{{ end -}}
{{- $found | toJson }}{{ if eq ((.model | default dict).kind | default "vllm") "emulated" }}{{ include "foretell.engine.args" . }}{{ end }}
{{- end }}

{{/* The engines as JSON for a provisioner, in the order of their ordinals. */}}
{{- define "foretell.instances" -}}
{{- $found := list -}}
{{- range (include "foretell.cluster" . | fromYaml).engines -}}
{{- $found = append $found (dict "instance_id" .name "url" (printf "http://%s:%v" .host .port) "predictor" (printf "%s:%v" .host .predictor_port)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

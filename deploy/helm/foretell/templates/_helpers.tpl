{{/* The name that everything of this release begins with; short, for pods have longer ones. */}}
{{- define "foretell.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 24 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 24 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The StatefulSet of one item of `models`, and its headless Service: (dict "root" $ "model" .) */}}
{{- define "foretell.engine" -}}
{{ include "foretell.name" .root }}-{{ .model.name }}
{{- end }}

{{/* Labels by which a component is selected: (dict "root" $ "component" "tagger") */}}
{{- define "foretell.selector" -}}
app.kubernetes.io/part-of: foretell
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
foretell/model: {{ .name }}
{{- end }}
{{- end }}

{{- define "foretell.labels" -}}
{{ include "foretell.selector" . }}
app.kubernetes.io/name: foretell
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* The image of our services, with what batches in Postgres and S3 need where that is on. */}}
{{- define "foretell.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-storage" "" .Values.batch.enabled)) }}
{{- end }}
{{- end }}

{{/* An engine's image: (dict "root" $ "model" .) */}}
{{- define "foretell.engine.image" -}}
{{- if .model.image }}{{ .model.image }}
{{- else if eq (.model.kind | default "vllm") "emulated" }}{{ include "foretell.image" .root }}
{{- else }}{{ .root.Values.vllmImage.repository }}:{{ .root.Values.vllmImage.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* What is scaled: the workload of a model. */}}
{{- define "foretell.engine.workload" -}}
{{- if gt (.model.nodes | default 1 | int) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: StatefulSet
{{- end }}
name: {{ include "foretell.engine" . }}
{{- end }}

{{/* How many engines of a model the cluster file lists: as many as there may be. */}}
{{- define "foretell.places" -}}
{{- $scaling := .autoscaling | default dict -}}
{{- if eq ($scaling.by | default "none") "none" }}{{ .replicas | default 1 | int }}{{ else }}{{ $scaling.maximum | int }}{{ end }}
{{- end }}

{{/* Scheduler replicas that the cluster file names. */}}
{{- define "foretell.schedulers" -}}
{{- $scaling := .Values.schedulers.autoscaling -}}
{{- ternary $scaling.maximum .Values.schedulers.replicas $scaling.enabled | int }}
{{- end }}

{{/* The model whose engines our provisioner counts, as JSON; {} where there is none. */}}
{{- define "foretell.provisioned" -}}
{{- $found := dict -}}
{{- range .Values.models }}
{{- if has ((.autoscaling | default dict).by | default "none") (list "keda" "provisioner") }}{{ $found = . }}{{ end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{/* Seconds that streams get to end, by the schedulers' own setting. */}}
{{- define "foretell.drain" -}}
{{ (.Values.cluster.schedulers.drain_timeout_s | default 25) | float64 | ceil | int }}
{{- end }}

{{- define "foretell.engine.drain" -}}
{{ .model.drainSeconds | default (include "foretell.drain" .root) | int }}
{{- end }}

{{/* vLLM's flags beyond the model and those that the cluster file derives, as JSON. */}}
{{- define "foretell.engine.args" -}}
{{- $args := .model.args | default list -}}
{{- if gt (.model.nodes | default 1 | int) 1 }}{{ $args = prepend $args (printf "--pipeline-parallel-size=%d" (int .model.nodes)) }}{{ end -}}
{{- $adapters := list -}}
{{- range $name, $path := .model.adapters }}{{ $adapters = append $adapters (printf "%s=%s" $name $path) }}{{ end -}}
{{- with $adapters }}{{ $args = concat (list "--enable-lora" "--lora-modules") . $args }}{{ end -}}
{{- if eq (.model.kind | default "vllm") "vllm" }}{{ $args = prepend $args (printf "--shutdown-timeout=%s" (include "foretell.engine.drain" .)) }}{{ end }}
{{- $args | toJson }}
{{- end }}

{{/* What restricted pod security demands of a pod, and what our image needs. */}}
{{- define "foretell.pod.security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "foretell.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What every pod has: (dict "root" $ "component" .. "model" .. "options" .Values.tagger) */}}
{{- define "foretell.pod" -}}
{{- $root := .root -}}
serviceAccountName: {{ include "foretell.name" $root }}-{{ .component | trimSuffix "-worker" }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "foretell.pod.security" . | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .options.priorityClassName | default (ternary (printf "%s-%s" (include "foretell.name" $root) (ternary "engine" "front" (hasPrefix "engine" .component))) "" $root.Values.priorityClasses.create) }}
priorityClassName: {{ . }}
{{- end }}
{{- with .options.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .options.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .options.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .options.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .options.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- if $root.Values.spread.topologyKeys }}
topologySpreadConstraints:
  {{- range $root.Values.spread.topologyKeys }}
  - maxSkew: {{ $root.Values.spread.maxSkew }}
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $root.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "foretell.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of a pod; the annotation starts it anew when its settings change. */}}
{{- define "foretell.pod.metadata" -}}
labels:
  {{- include "foretell.labels" . | nindent 2 }}
  {{- with .options.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- if .model }}
  foretell/models: {{ concat (list .model.model) (keys (.model.adapters | default dict) | sortAlpha) | join "," | quote }}
  {{- end }}
  checksum/settings: {{ include "foretell.settings" . | sha256sum }}
  {{- with .options.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The container of one of our services: (dict "root" $ "service" "tagger" "module" "tagger"
     "resources" .. "env" ..); probes, ports and more are added by who includes it. */}}
{{- define "foretell.container" -}}
name: {{ .service }}
image: {{ include "foretell.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [python, -m, foretell.services.{{ .module | default .service }}]
securityContext:
  {{- include "foretell.container.security" . | nindent 2 }}
resources:
  {{- toYaml .resources | nindent 2 }}
{{- end }}

{{/* What may speak to the API server has its token, and a Role that says what for:
     (dict "root" $ "component" .. "rules" ..) */}}
{{- define "foretell.role" -}}
{{- $name := printf "%s-%s" (include "foretell.name" .root) .component -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  labels:
    {{- include "foretell.labels" . | nindent 4 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "foretell.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{- define "foretell.token.mount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "foretell.token" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items:
            - path: namespace
              fieldRef: {fieldPath: metadata.namespace}
{{- end }}

{{- define "foretell.mounts" -}}
- {name: cluster, mountPath: /etc/foretell/cluster, readOnly: true}
- {name: secrets, mountPath: /etc/foretell/secrets, readOnly: true}
- {name: run, mountPath: /run/foretell}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* Volumes of a pod; .keys: whether it gets the API keys, too. */}}
{{- define "foretell.volumes" -}}
{{- $secrets := .root.Values.secrets -}}
- name: cluster
  configMap:
    name: {{ include "foretell.name" .root }}-cluster
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ $secrets.traffic.name }}
          items:
            - {key: {{ $secrets.traffic.key }}, path: traffic}
      {{- with .root.Values.trafficTls.secretName }}
      - secret:
          name: {{ . }}
          items:
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
            - {key: ca.crt, path: ca.crt}
      {{- end }}
      {{- if .keys }}
      {{- with $secrets.apiKeys }}
      - secret:
          name: {{ .name }}
          items:
            - {key: {{ .key }}, path: api-keys}
      {{- end }}
      {{- with $secrets.engineApiKey }}
      - secret:
          name: {{ .name }}
          items:
            - {key: {{ .key }}, path: engine-api-key}
      {{- end }}
      {{- if and .root.Values.gateway.inferencePool .root.Values.gateway.pickerTlsSecretName }}
      - secret:
          name: {{ .root.Values.gateway.pickerTlsSecretName }}
          items:
            - {key: tls.crt, path: picker.crt}
            - {key: tls.key, path: picker.key}
      {{- end }}
      {{- end }}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- end }}

{{/* A variable from a Secret: (dict "name" "HF_TOKEN" "secret" (dict "name" .. "key" ..)) */}}
{{- define "foretell.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
{{- end }}

{{- define "foretell.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- include "foretell.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "foretell.selector" . | nindent 6 }}
{{- end }}
